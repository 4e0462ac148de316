"""An S3 server on loopback, for tests of stores at URLs."""

from __future__ import annotations

import logging
import uuid
import warnings

import pytest


@pytest.fixture(scope="session")
def _s3_server():
    """The address of a server that lives as long as the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("s3fs", reason="stores on S3 need s3fs")
        server_module = pytest.importorskip("moto.server", reason="stores on S3 are tested with moto[server]")
        server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server.start()
        yield "http://{}:{}".format(*server.get_host_and_port())
        server.stop()


@pytest.fixture
def bucket(_s3_server, monkeypatch):
    """URL of an empty bucket; processes that the test starts find it too."""
    for name, value in {
        "AWS_ENDPOINT_URL": _s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    name = f"packs-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    s3fs.S3FileSystem.clear_instance_cache()
