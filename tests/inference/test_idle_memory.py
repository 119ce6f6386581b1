"""What an idle session keeps for each node of its model."""

from __future__ import annotations

from pathlib import Path

from tests.inference.test_session_memory import content, in_a_process


def test_an_idle_session_keeps_one_graph_of_its_nodes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content(layers=150, width=96))  # weights of mapped blocks, not of the heap
    in_a_process(
        """
import ctypes
class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]
def heap():
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    return mallinfo().h  # bytes in use
x = np.ones((4, 96), "float32")
def idle():
    session = InferenceSession(sys.argv[1], options)
    session.run(None, {"x": x})
    time.sleep(1)
    return session
del (first := [idle()])[0]  # what the process keeps
before = heap()
session = idle()
assert (heap() - before) / 450 <= 2700, (heap() - before) / 450  # for each node
session.run(None, {"x": x[:2]})
""",
        str(path),
    )
