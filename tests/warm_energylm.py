"""`energylm` that has its imports behind it: a process that forks for every command that its stub sends it.

    python warm_energylm.py FOLDER      puts the stub there, serves until it is killed; prints "ready" once

Importing torch and transformers costs seconds, most commands of the pages far less. The stub passes its arguments,
folder, environment and standard streams, so pipes and redirections are the shell's own. Slow commands are made short
(`shortened_steps`). That the real program starts is shown by `cli/test_main.py`.
"""

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import shortened_steps

STUB = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    task = json.dumps({{"argv": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}})
    socket.send_fds(server, [len(task.encode()).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(task.encode())
    sys.exit(int(server.recv(16) or b"1"))
"""
# For the children's sake: what commands would import one by one.
MODULES = (
    *("accelerate", "matplotlib.backends.backend_agg", "matplotlib.figure", "pyarrow.parquet", "scipy.stats"),
    *(f"transformers.models.{name}" for name in ("auto.modeling_auto", "bert.modeling_bert", "gpt2.modeling_gpt2")),
    *(f"energylm.bundles.{name}" for name in ("detector", "reranker", "residual_model", "scorer", "seq2seq_model")),
    *("energylm.data.corpus", "energylm.training.engine"),
)


def write_stub(folder: Path, address: Path) -> None:
    """A program called energylm in `folder`."""
    stub = folder / "energylm"
    stub.write_text(STUB.format(python=sys.executable, address=str(address)), encoding="utf-8")
    stub.chmod(0o755)


def serve(folder: Path) -> None:
    from energylm.cli.main import main

    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    address = folder / "socket"
    write_stub(folder, address)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(16)
        print("ready", flush=True)
        while True:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                answer(client, main)
                os._exit(0)
            client.close()


def answer(client: socket.socket, main) -> None:
    """Run one command in a child and tell its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    task = json.loads(client.makefile("rb").read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        os._exit(run(task, streams, main))
    for stream in streams:
        os.close(stream)
    client.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def run(task: dict, streams: list[int], main) -> int:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(task["folder"])
    os.environ.clear()
    os.environ.update(task["environment"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")

    def call(argv: list[str]) -> int:
        sys.argv = ["energylm", *argv]
        try:
            main()
        except SystemExit as leaving:
            return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        return 0

    try:
        code = shortened_steps.run(task["argv"], call, workshop=Path(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
