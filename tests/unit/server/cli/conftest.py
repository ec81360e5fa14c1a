import pytest
from live_server import LiveServer


@pytest.fixture(scope="session")
def fed(tmp_path_factory):
    """A server with two finished runs: `alpha` (4 layers, 8 heads, 120 steps) and one with a hostile name."""
    server = LiveServer(tmp_path_factory.mktemp("fed"))
    assert server.feed("alpha", steps=120, layers=4, heads=8).wait(30) == 0
    assert server.feed(HOSTILE, "--odd-values", steps=20, layers=2, heads=2).wait(30) == 0
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path):
    """A server of its own, empty."""
    one = LiveServer(tmp_path / "server")
    yield one
    one.stop()


# Printable, so that it may be a run's name: direction override, quotes, HTML, emoji, a backslash escape in text.
HOSTILE = "beta/\u202egpj <img src=x onerror=alert(1)> \"q\" 'x' \\x1b[31m \U0001f680"


@pytest.fixture
def hostile():
    return HOSTILE
