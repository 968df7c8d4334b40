"""Small Fashion-MNIST look-alikes, a loopback server that counts, and what tests of real parts share."""

import functools
import gzip
import hashlib
import socket
import struct
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from jaxperf.data import DEBIAN_FOLDER, FashionMNIST

needs_debian = pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason=f"needs Debian's {DEBIAN_FOLDER}")


def images_file(count, *, magic=0x0803, rows=28, columns=28, body=b""):
    return struct.pack(">IIII", magic, count, rows, columns) + body


def labels_file(count, *, magic=0x0801, body=b""):
    return struct.pack(">II", magic, count) + body


def generated(train=40, test=20):
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (train + test, 28, 28, 1), np.uint8)
    y = np.arange(train + test, dtype=np.int32) % 10
    return FashionMNIST(x[:train], y[:train], x[train:], y[train:], "generated")


def arrays(data):
    return data.train_images, data.train_labels, data.test_images, data.test_labels


def packed(data):
    files, (X, y, test_X, test_y) = {}, arrays(data)
    for part, images, labels in (("train", X, y), ("t10k", test_X, test_y)):
        raw_images = images_file(len(images), body=images.tobytes())
        raw_labels = labels_file(len(labels), body=labels.astype(np.uint8).tobytes())
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(raw_images, mtime=0)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(raw_labels, mtime=0)
    return files


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        folder.joinpath(name).write_bytes(data)
    return folder


def pins(files):
    """What `ORIGIN_FILES` would be if `files` were the published ones."""
    return {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}


def same(a, b):
    pairs = zip(arrays(a), arrays(b), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


class Loopback:
    """A server on 127.0.0.1: `files` by name, `gets` counted by name."""

    def __init__(self, files):
        self.files, self.gets = files, Counter[str]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                outer.gets[name] += 1
                data = outer.files.get(name)
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data"


@contextmanager
def loopback(files):
    served = Loopback(files)
    thread = threading.Thread(target=served.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        served.server.server_close()
        thread.join()


@functools.cache
def closed_port():
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    taken.detach()  # stays open, so that nobody else gets the port
    return f"http://127.0.0.1:{port}/"
