"""The signature policy: sessions load models that trusted keys signed, and no others.

A session verifies before it reads a model or looks for its compiled form, and once the model is loaded, that every data
file is signed and is the file that was verified. Results are remembered while size, times and inode of all files stay.
"""

from __future__ import annotations

import contextlib
import os
import threading
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sardonyx.base.neighbour_files import neighbour
from sardonyx.base.signature_policy import VARIABLE, policies
from sardonyx.errors import OptionError, SignatureError, SignatureMismatchError
from sardonyx.trust.signing.signatures import SUFFIX, Verifier, require_signed, signed_files, verify_files

_MAX_BYTES = 1 << 20
_lock = threading.Lock()
_verified: dict[tuple[str, tuple[Verifier, ...]], tuple[dict[Path, tuple[int, ...]], tuple[Path, ...]]] = {}
_MOST_MODELS = 1000


@dataclass(frozen=True)
class Policy:
    """Who may have signed the models of this process.

    Attributes:
        verifiers: The trusted keys and certificates; a signature must match one.
        unsigned: ``"refuse"`` or ``"allow"`` models without a signature file; a signature that does not match is always
            refused.
    """

    verifiers: tuple[Verifier, ...]
    unsigned: str = "refuse"

    def __post_init__(self) -> None:
        if self.unsigned not in ("refuse", "allow"):
            raise OptionError(f"expected 'refuse' or 'allow', got {self.unsigned!r}.", where="unsigned")


def read_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy from a TOML file; paths in the file are relative to its folder.

    The file has ``unsigned = "refuse"``, and a table for each verifier: ``[[verifier]]`` with ``public_key =
    "author.pub"`` or ``certificates = ["root.pem"]``.

    Raises:
        SignatureError: The file cannot be read.
        OptionError: The file has other entries.
    """
    source = Path(path)
    try:
        with source.open("rb") as file:
            data = tomllib.loads(file.read(_MAX_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise SignatureError(f"the policy cannot be read: {error}.", where=str(source)) from error
    verifiers = data.pop("verifier", [])
    unsigned = data.pop("unsigned", "refuse")
    if data or not isinstance(verifiers, list) or not all(isinstance(entry, dict) for entry in verifiers):
        raise OptionError("expected `unsigned` and tables `[[verifier]]` alone.", where=str(source))
    return Policy(tuple(_verifier(entry, source) for entry in verifiers), unsigned)


def _verifier(entry: dict[str, Any], source: Path) -> Verifier:
    key, certificates = entry.pop("public_key", None), entry.pop("certificates", [])
    if (
        entry
        or not isinstance(certificates, list)
        or not all(isinstance(name, str) for name in ["" if key is None else key, *certificates])
    ):
        raise OptionError("expected `public_key` or `certificates`, as texts.", where=str(source))
    folder = source.parent
    return Verifier(None if key is None else folder / key, tuple(folder / name for name in certificates))


@contextlib.contextmanager
def use_policy(policy: Policy) -> Iterator[None]:
    """Enforce a policy for all sessions that are created inside of the ``with`` statement, in all threads."""
    policies.append(policy)
    try:
        yield
    finally:
        policies.remove(policy)


def verify_on_load(path: str | os.PathLike[str], files: Sequence[Any] = ()) -> None:
    """Enforce the policy on a model that a session loads: the hook of the runtime.

    Args:
        path: The model file.
        files: Files that belong to the model and must be signed: paths, or the opened files
            (`sardonyx.model.external.MappedFile`), which must be the verified ones.

    Raises:
        SignatureError: The model has no signature, none of the trusted keys matches, or a file is not signed.
    """
    policy = policies[-1] if policies else read_policy(os.environ[VARIABLE])
    assert isinstance(policy, Policy)
    source = Path(path)
    signature = neighbour(source, SUFFIX)
    if policy.unsigned == "allow" and not signature.exists():
        return
    states, signed = _verified_files(source, signature, policy)
    require_signed([source], signed, source)
    for file in files:
        name = Path(os.path.realpath(getattr(file, "path", file)))
        require_signed([name], signed, source)
        if (descriptor := getattr(file, "descriptor", None)) is not None and _state(os.fstat(descriptor)) != states[
            name
        ]:
            raise SignatureMismatchError("was replaced after its signature was verified.", where=str(name))


def _verified_files(
    source: Path, signature: Path, policy: Policy
) -> tuple[dict[Path, tuple[int, ...]], tuple[Path, ...]]:
    key = os.path.realpath(source), policy.verifiers
    with _lock:
        known = _verified.get(key)
    if known is not None and all(_state_of(file) == state for file, state in known[0].items()):
        return known
    if not policy.verifiers:
        raise SignatureError("the policy trusts no key.", where=str(source))
    reasons = []
    for verifier in policy.verifiers:
        try:
            files = [signature, *signed_files(source, signature)]
            states = {Path(os.path.realpath(file)): _state_of(file) for file in files}
            signed = verify_files(source, signature, verifier)
        except SignatureError as error:
            reasons.append(f"{verifier}: {error.problem}")
            continue
        if all(_state_of(file) == state for file, state in states.items()):
            result = states, signed
            with _lock:
                if len(_verified) >= _MOST_MODELS:
                    _verified.clear()
                _verified[key] = result
            return result
        reasons.append("a file changed during the verification")
    raise SignatureMismatchError(
        f"no trusted key signed the model ({'; '.join(reasons)[:600]}).",
        where=str(source),
        remedy="Get the model and its signature from a trusted author, or add the author's key to the policy.",
    )


def _state_of(path: Path) -> tuple[int, ...]:
    try:
        return _state(path.stat())
    except OSError:
        return ()


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
