"""The study's server as a process of its own: fifty raters at once, and `kill -9` in the middle of it."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from energylm.apps.study.store import StudyStore
from energylm.apps.study.verbs import StudyInvite

RATERS, PAIRS_EACH = 50, 3
PATIENCE_SECONDS = 300  # a busy machine takes its time to start a server; nothing waits that long otherwise
ITEM = re.compile(r'name="item" value="(\w+)"')

# A server that says thank you first and would write later: what a kill must bring to light.
FORGETFUL = "from energylm.apps.study.store import StudyStore\nStudyStore.answer = lambda *_: 'stored'\n"
RUN = "import sys\nfrom energylm.cli.main import main\nsys.argv[0] = 'energylm'\nmain()\n"


class Server:
    def __init__(self, folder, *, port=0, mistake=""):
        command = [sys.executable, "-c", mistake + RUN, "study", "serve", str(folder), "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found, said + self.process.stderr.read()
        self.port = int(found.group(1))

    def end(self, how):
        """Send the signal; gives all that the server has written."""
        self.process.send_signal(how)
        return "".join(self.process.communicate(timeout=60))


@pytest.fixture
def start():
    """`start(folder, …)` starts a server; none is left behind."""
    started = []

    def start_server(*arguments, **options):
        started.append(Server(*arguments, **options))
        return started[-1]

    yield start_server
    for one in started:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


async def rate(client, link, acknowledged, *, most=1000):
    """One rater who answers left until there is nothing left; what fails on the way is tried again."""
    for _ in range(most):
        page = await patiently(client.get, link)
        item = ITEM.search(page.text)
        if item is None:
            assert "Thank you" in page.text
            return
        form = {"item": item.group(1), "choice": "left", "seconds": "1"}
        answer = await patiently(client.post, f"{link}/answer", data=form)
        assert answer.status_code == 303
        acknowledged.append((link, item.group(1)))


async def patiently(send, *arguments, **options):
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = await send(*arguments, **options)
            if answer.status_code < 500:
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, "the server stayed away"
        await asyncio.sleep(0.1)


async def panel(links, acknowledged, *, most=1000):
    limits = httpx.Limits(max_connections=len(links))
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=limits) as client:
        await asyncio.gather(*(rate(client, link, acknowledged, most=most) for link in links))


def stored(folder, names):
    """(link, item) of every answer on the disk; `names` gives a rater's link."""
    with StudyStore.open(folder) as store:
        return [(names[one.rater], one.item) for one in store.answers()]


def links_to(folder, port, raters):
    invited = StudyInvite(study=str(folder), raters=raters, url=f"http://127.0.0.1:{port}").run()
    return {invitation.label: invitation.secret for invitation in invited.invitations}


@pytest.mark.slow
def test_fifty_raters_at_once_lose_no_vote_though_the_server_is_killed(make_study, start):
    folder = make_study(pairs=40, qualification=0, raters_per_pair=5, max_pairs_per_rater=PAIRS_EACH)
    server = start(folder)
    names = links_to(folder, server.port, RATERS)
    acknowledged, at_the_kill = [], []

    async def killed_in_the_middle():
        nonlocal server
        panels = asyncio.create_task(panel(list(names.values()), acknowledged))
        while len(acknowledged) < RATERS:
            await asyncio.sleep(0.01)
        assert not panels.done()
        server.process.kill()
        at_the_kill.append(len(acknowledged))
        await asyncio.to_thread(server.process.communicate)
        server = await asyncio.to_thread(start, folder, port=server.port)
        await panels

    asyncio.run(killed_in_the_middle())
    written = server.end(signal.SIGINT)
    expected = RATERS * (PAIRS_EACH + 1)  # a check goes with three pairs
    assert RATERS <= at_the_kill[0] < expected
    assert len(acknowledged) == expected
    on_disk = stored(folder, names)
    assert sorted(on_disk) == sorted(acknowledged) and len(set(on_disk)) == expected
    assert "Traceback" not in written and not [link for link in names.values() if link.rpartition("/")[2] in written]


def test_a_server_that_acknowledges_before_it_stores_is_caught(make_study, start):
    """Teeth: the same comparison finds what such a server loses."""
    folder = make_study(pairs=4, qualification=0)
    server = start(folder, mistake=FORGETFUL)
    names = links_to(folder, server.port, 2)
    acknowledged = []
    asyncio.run(panel(list(names.values()), acknowledged, most=2))
    server.end(signal.SIGKILL)
    assert len(acknowledged) == 4 and stored(folder, names) == []


def test_answers_are_sent_at_once():
    """Headers and body are two writes; with Nagle's algorithm the second waits for the first's acknowledgement."""
    from energylm.apps import hosting

    with hosting.listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_taken_port_is_one_line(make_study):
    from energylm.apps import hosting
    from energylm.errors import ConfigError

    with hosting.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert hosting.address_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: .* choose another"):
            hosting.listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"cannot listen on nowhere\.invalid"):
        hosting.listen("nowhere.invalid", 0)
