"""Install a real Triton server with its ONNX Runtime backend in a folder, without a container.

    python benchmarks/build_triton.py ~/triton
    TRITON_COMMAND="$HOME/triton/triton {repository} {http} {grpc}" python benchmarks/serve.py --peers triton

The server is the program in the wheel `nvidia-pytriton`, which has a Python backend only. The backend of ONNX Runtime
is compiled (one minute) from the sources of the same release of Triton, for the library in the wheel `onnxruntime`.
The folder takes about 0.6 GB; deleting it removes everything.

`--git` and `--onnxruntime-git` name other places of the sources, with `{name}` for a repository of Triton. `--headers`
names folders with header files that are present: of ONNX Runtime (then nothing is cloned for them) and of `rapidjson`
(else the system's, Debian: `rapidjson-dev`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

RELEASE = "r24.10"
"""Release of Triton 2.51, which is in the wheel."""

WHEEL = "nvidia-pytriton==0.7.0"

SOURCES = {
    "onnxruntime_backend": ("src/onnxruntime.cc", "src/onnxruntime_loader.cc", "src/onnxruntime_utils.cc"),
    "backend": (
        "src/backend_common.cc", "src/backend_input_collector.cc", "src/backend_memory.cc", "src/backend_model.cc",
        "src/backend_model_instance.cc", "src/backend_output_responder.cc",
    ),
    "common": ("src/async_work_queue.cc", "src/error.cc", "src/thread_pool.cc"),
    "core": (),
}  # fmt: skip
"""Repositories, and what of each is compiled; of `core` only headers are used."""

COMMAND = """#!/bin/sh
exec {program} --model-repository "$1" --http-address 127.0.0.1 --http-port "$2" --grpc-address 127.0.0.1 \\
    --grpc-port "$3" --allow-metrics false --backend-directory {backends}
"""


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


def install(folder: Path) -> Path:
    """Install both wheels in an environment of the folder; return its folder of packages."""
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", WHEEL)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "onnxruntime")
    return next((folder / "environment" / "lib").glob("python*/site-packages"))


def runtime_headers(folder: Path, packages: Path, git: str) -> Path:
    """Clone the headers of the installed ONNX Runtime; return their folder."""
    (information,) = packages.glob("onnxruntime-*.dist-info")
    version = information.name.removesuffix(".dist-info").partition("-")[2]
    target = folder / "onnxruntime"
    run("git", "clone", "-q", "--depth", "1", "--filter=blob:none", "--sparse", "-b", f"v{version}", git, target)
    run("git", "-C", target, "sparse-checkout", "set", "include/onnxruntime/core/session")
    return target / "include" / "onnxruntime" / "core" / "session"


def compile_backend(folder: Path, packages: Path, headers: list[Path]) -> None:
    backend = folder / "backends" / "onnxruntime"
    backend.mkdir(parents=True)
    library = folder / "libonnxruntime.so.1"
    library.symlink_to(next((packages / "onnxruntime" / "capi").glob("libonnxruntime.so.*")))
    flags = [f"-I{path}" for path in (*headers, *(folder / name / "include" for name in SOURCES))]
    flags += [f"-I{folder / name / 'src'}" for name in ("onnxruntime_backend", "backend")]
    objects = []
    for name, files in SOURCES.items():
        for file in files:
            objects.append(folder / f"{name}-{Path(file).stem}.o")
            run("g++", "-std=c++17", "-O2", "-fPIC", "-DTRITON_ENABLE_STATS=1", "-DTRITON_MIN_COMPUTE_CAPABILITY=6.0",
                *flags, "-c", folder / name / file, "-o", objects[-1])  # fmt: skip
    exports = folder / "onnxruntime_backend" / "src" / "libtriton_onnxruntime.ldscript"
    run("g++", "-shared", "-o", backend / "libtriton_onnxruntime.so", *objects, f"-Wl,--version-script={exports}",
        f"-Wl,-rpath,{folder}", library, "-lpthread", "-ldl")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder that does not exist")
    parser.add_argument("--git", default="https://github.com/triton-inference-server/{name}.git")
    parser.add_argument("--onnxruntime-git", default="https://github.com/microsoft/onnxruntime.git")
    parser.add_argument("--headers", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True)
    packages = install(folder)
    for name in SOURCES:
        run("git", "clone", "-q", "--depth", "1", "-b", RELEASE, arguments.git.format(name=name), folder / name)
    headers = [path.absolute() for path in arguments.headers]
    if not any((path / "onnxruntime_c_api.h").exists() for path in headers):
        headers.append(runtime_headers(folder, packages, arguments.onnxruntime_git))
    compile_backend(folder, packages, headers)
    program = packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    script = folder / "triton"
    script.write_text(COMMAND.format(program=program, backends=folder / "backends"))
    script.chmod(0o755)
    print(f'TRITON_COMMAND="{script} {{repository}} {{http}} {{grpc}}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
