"""``python -m sardonyx`` is the ``sardonyx`` command."""

from sardonyx.cli import main

main()
