"""``python -m sardonyx.cli`` is the ``sardonyx`` command."""

from sardonyx.cli import main

main()
