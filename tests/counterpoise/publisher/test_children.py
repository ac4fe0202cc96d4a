"""Publishers that nobody closes, in processes that Python's own libraries start."""

import multiprocessing
import subprocess
import sys
from collections import Counter

import pytest

from tests.counterpoise.log_access import service
from tests.log_support import log, log_url, texts

__all__ = ["log", "log_url", "service"]

# Messages wait for so long in the buffer that only the end of the process sends them.
CHILDREN = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from counterpoise.publisher import Publisher

kept = []

def publish(url, name, ends="", lingers=600):
    publisher = Publisher("flights", url=url, linger_seconds=lingers)
    kept.append(publisher)
    for number in range(100):
        publisher.publish(f"{name}".encode())
    if ends == "raises":
        raise KeyError("of the child")
    if ends == "exits":
        sys.exit(7)

def main(url, method):
    context = multiprocessing.get_context(method)
    # What is open in the parent is no matter of the children that are forked.
    publish(url, "parent")
    for ends, code in ("", 0), ("raises", 1), ("exits", 7):
        child = context.Process(target=publish, args=(url, ends or "returns", ends))
        child.start()
        child.join()
        assert child.exitcode == code, child.exitcode
    with context.Pool(2) as pool:
        pool.starmap(publish, [(url, "pool")] * 2, chunksize=1)
        pool.close()
        pool.join()
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert list(executor.map(publish, [url] * 2, ["executor"] * 2)) == [None, None]

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.matrix("method")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_child_that_ends_delivers_its_messages(service, log, tmp_path, method):
    program = tmp_path / "children.py"
    program.write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, program, service.url, method],
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = Counter(text for partition in range(8) for text in texts(log, partition))
    once = dict.fromkeys(["parent", "returns", "raises", "exits"], 100)
    assert found == {**once, "pool": 200, "executor": 200}
