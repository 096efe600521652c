"""The server of the live page: what it answers, what it refuses, and news in time."""

import errno
import http.client
import json
import os
import shutil
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import pytest
from report_runs import SMALL, add_episode, begin, serving

from mufield.report.data import RunReader
from mufield.report.server import PageServer, Watcher


def ask(server, path, method="GET", **headers):
    with closing(http.client.HTTPConnection(*server.server_address, timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def events(answer):
    """The messages of a stream, as they come."""
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


@contextmanager
def listening(server):
    with closing(http.client.HTTPConnection(*server.server_address, timeout=30)) as connection:
        connection.request("GET", "/events")
        with closing(connection.getresponse()) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            yield events(answer)


def test_the_page_the_flows_and_nothing_else(run):
    with serving(run) as server:
        status, headers, page = ask(server, "/?x=1")
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert '"live":true' in page
        assert "connect-src 'self'" in page
        status, _, flow = ask(server, "/flow/0/2")
        assert status == 200
        assert json.loads(flow)["space"]["horizon"] == 3
        assert "message" in json.loads(ask(server, "/flow/0/9")[2])
        for path in ("/flow/1/1", "/flow/0/../1", "/config.json", "/../run/config.json", "//etc"):
            assert ask(server, path)[0] == 404


def test_only_get_and_only_by_the_name_of_this_computer(run):
    with serving(run) as server:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            assert ask(server, "/", method)[0] == 405
        assert ask(server, "/", Host="elsewhere.example")[0] == 403
        assert ask(server, "/", Host="localhost:1")[0] == 200


def test_news_arrive_while_the_run_goes_on(run, small_rooms):
    assert Watcher.interval <= 1.0  # seconds between two looks at the files
    with serving(run) as server, listening(server) as stream:
        assert len(next(stream)["runs"][0]["rows"]) == 2
        for number in (3, 4, 5):
            add_episode(run, small_rooms, number)
            while len(next(stream)["runs"][0]["rows"]) < number:
                pass


def test_a_run_may_begin_later_and_begin_anew(tmp_path, small_rooms):
    run = tmp_path / "run"
    with serving(run) as server, listening(server) as stream:
        assert next(stream)["runs"][0]["message"] == "There is no run here yet."
        begin(run, SMALL)
        add_episode(run, small_rooms, 1)
        add_episode(run, small_rooms, 2)
        while len(next(stream)["runs"][0]["rows"]) < 2:
            pass
        shutil.rmtree(run)
        begin(run, SMALL)
        add_episode(run, small_rooms, 1)
        while len(next(stream)["runs"][0]["rows"]) != 1:
            pass


def test_a_port_that_is_taken_is_said(run):
    with serving(run) as server, pytest.raises(ValueError, match="choose another with --port"):
        PageServer([run], "127.0.0.1", server.server_address[1], None)


def test_a_broken_host_is_refused_without_a_traceback(run, capfd):
    with serving(run) as server:
        assert ask(server, "/", Host="[::1")[0] == 403
    assert capfd.readouterr().err == ""


def test_every_loopback_address_checks_the_host(run):
    with serving(run, host="127.0.0.2") as server:
        assert ask(server, "/", Host="elsewhere.example")[0] == 403
        assert ask(server, "/", Host="127.0.0.2:1")[0] == 200


def _drip(connection):
    for _ in range(100):
        connection.sendall(b"G")
        time.sleep(0.1)


def test_half_sent_requests_are_ended_however_slowly_they_drip(run, monkeypatch):
    monkeypatch.setattr(PageServer, "patience", 0.5)
    with serving(run) as server, socket.create_connection(server.server_address, 30) as slow:
        with pytest.raises(ConnectionError):
            _drip(slow)
        assert ask(server, "/")[0] == 200


def test_many_half_sent_requests_leave_the_watcher_its_files(run, small_rooms):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(run) as server, listening(server) as stream, ExitStack() as slow:
        assert len(next(stream)["runs"][0]["rows"]) == 2
        json.loads(ask(server, "/flow/0/2")[2])  # waits until all is compiled
        both_ends = 66 + PageServer.most_connections
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + both_ends + 10, before[1]))
        slow.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        for _ in range(66):
            slow.enter_context(socket.create_connection(server.server_address)).sendall(b"GET /")
        time.sleep(2 * Watcher.interval)
        add_episode(run, small_rooms, 3)
        assert len(next(stream)["runs"][0]["rows"]) == 3


def test_a_look_that_fails_is_not_the_last(run, small_rooms, monkeypatch):
    with serving(run) as server, listening(server) as stream:
        assert len(next(stream)["runs"][0]["rows"]) == 2
        failed = threading.Event()

        def fail(reader):
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(RunReader, "fingerprint", fail)
            assert failed.wait(30)
        add_episode(run, small_rooms, 3)
        assert len(next(stream)["runs"][0]["rows"]) == 3
