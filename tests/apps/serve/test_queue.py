"""The queue in front of the models, with handlers that are made of events: order, batches, limits, leaving."""

import asyncio
import threading

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")

from energylm.apps.security import RefusedRequest
from energylm.apps.serve import queue as serve_queue
from energylm.apps.serve.completer import Abandoned
from energylm.apps.serve.queue import ModelQueue, ServeMetrics
from energylm.apps.serve.verb import ServeLimits
from energylm.errors import DataError


class Models:
    """A handler that keeps what came together and waits for `go` in every batch."""

    def __init__(self):
        self.batches, self.go, self.entered = [], threading.Event(), threading.Event()
        self.saw_nobody = False

    def work(self, payloads, is_wanted):
        self.batches.append(list(payloads))
        self.entered.set()
        while not self.go.wait(0.005):
            if not is_wanted():
                self.saw_nobody = True
                raise Abandoned
        if "bad" in payloads:
            raise DataError("one of these is bad")
        if "bug" in payloads:
            raise ZeroDivisionError
        return [f"{payload}!" for payload in payloads]


async def stays():
    return False


def queue_of(models, **limits):
    chosen = ServeLimits(**({"max_waiting": 64, "gather_seconds": 0.0} | limits))
    metrics = ServeMetrics()
    return ModelQueue({"a": models.work, "b": models.work}, limits=chosen, metrics=metrics), metrics


async def start(queue, models, payload="first", kind="a", rows=1):
    """A task whose batch has begun, so that what comes next waits."""
    models.entered.clear()
    task = asyncio.create_task(queue.run(kind, payload, rows=rows, has_left=stays))
    await asyncio.to_thread(models.entered.wait, 5)
    return task


async def waiting(queue, *payloads, kind="a", rows=1):
    tasks = [asyncio.create_task(queue.run(kind, payload, rows=rows, has_left=stays)) for payload in payloads]
    await asyncio.sleep(0)
    return tasks


def test_what_waits_travels_together_in_order_and_by_kind():
    async def scene():
        models = Models()
        queue, metrics = queue_of(models, max_batch_rows=6)
        first = await start(queue, models)
        tasks = await waiting(queue, "p", "q", rows=2)
        tasks += await waiting(queue, "x", kind="b")
        tasks += await waiting(queue, "r", "s", rows=2)
        assert queue.waiting == 5
        models.go.set()
        answers = await asyncio.gather(first, *tasks)
        await queue.close()
        assert [request.answer for request in answers] == ["first!", "p!", "q!", "x!", "r!", "s!"]
        assert models.batches == [
            ["first"],
            ["p", "q", "r"],
            ["x"],
            ["s"],
        ]  # six rows at most, others keep their places
        assert metrics.registry.get_sample_value("energylm_batch_requests_sum") == 6
        assert metrics.registry.get_sample_value("energylm_queue_depth") == 0
        assert all(request.queue_seconds > 0 and request.model_seconds > 0 for request in answers[1:])

    asyncio.run(scene())


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back():
    async def scene():
        models = Models()
        queue, metrics = queue_of(models, max_waiting=2)
        tasks = [await start(queue, models), *await waiting(queue, "p", "q")]
        with pytest.raises(RefusedRequest, match="2 requests are waiting") as refused:
            await queue.run("a", "r", rows=1, has_left=stays)
        assert refused.value.status == 429 and int(refused.value.headers["retry-after"]) >= 1
        models.go.set()
        assert [request.answer for request in await asyncio.gather(*tasks)] == ["first!", "p!", "q!"]
        assert metrics.registry.get_sample_value("energylm_queue_full_total") == 1
        await queue.close()

    asyncio.run(scene())


def test_one_bad_request_does_not_spoil_the_others():
    async def scene():
        models = Models()
        queue, _ = queue_of(models)
        first = await start(queue, models)
        tasks = await waiting(queue, "p", "bad", "q")
        models.go.set()
        p, bad, q = await asyncio.gather(*tasks, return_exceptions=True)
        assert (p.answer, q.answer) == ("p!", "q!") and isinstance(bad, DataError)
        assert models.batches[1:] == [["p", "bad", "q"], ["p"], ["bad"], ["q"]]
        bugs = await asyncio.gather(*await waiting(queue, "r", "bug"), return_exceptions=True)
        assert all(isinstance(bug, ZeroDivisionError) for bug in bugs if not hasattr(bug, "value"))
        assert (await queue.run("a", "s", rows=1, has_left=stays)).answer == "s!"  # the worker lives on
        await first
        await queue.close()

    asyncio.run(scene())


def test_whoever_has_an_answer_is_not_counted_as_running(monkeypatch):
    """`running` at the moment of each answer: 0 for the last of a batch, whether the batch succeeds, has a bad request
    (each then runs alone: 2, 1, 0 remain) or fails. Counted down after the answers were sent, which is the mistake that
    this is about, they were 1, 3, 3, 3, 1."""
    seen, finish = [], serve_queue.QueuedRequest.finish

    async def scene():
        models = Models()
        queue, _ = queue_of(models)

        def noting(job, *arguments, **named):
            seen.append(queue.running)
            finish(job, *arguments, **named)

        monkeypatch.setattr(serve_queue.QueuedRequest, "finish", noting)
        first = await start(queue, models)
        tasks = await waiting(queue, "p", "q", "bad")
        models.go.set()
        await asyncio.gather(first, *tasks, return_exceptions=True)
        await asyncio.gather(*await waiting(queue, "bug"), return_exceptions=True)
        await queue.close()

    asyncio.run(scene())
    assert seen == [0, 2, 1, 0, 0]


def test_out_of_time_is_504_and_frees_the_models():
    async def scene():
        models = Models()
        queue, _ = queue_of(models, request_seconds=0.1)
        with pytest.raises(RefusedRequest) as refused:
            await queue.run("a", "slow", rows=1, has_left=stays)
        assert refused.value.status == 504
        await queue.close()  # would wait forever if the handler were not told
        assert models.saw_nobody

    asyncio.run(scene())


def test_who_has_left_is_not_served():
    async def left():
        return True

    async def scene():
        models = Models()
        queue, _ = queue_of(models)
        first = await start(queue, models)
        with pytest.raises(RefusedRequest) as refused:
            await queue.run("a", "gone", rows=1, has_left=left)
        assert refused.value.status == 499
        models.go.set()
        await first
        await queue.close()
        assert models.batches == [["first"]]

    asyncio.run(scene())


def test_closing_answers_what_waits_and_takes_nothing_new():
    async def scene():
        models = Models()
        queue, _ = queue_of(models)
        tasks = [await start(queue, models), *await waiting(queue, "p")]
        closing = asyncio.create_task(queue.close())
        await asyncio.sleep(0.02)
        with pytest.raises(RefusedRequest) as refused:
            await queue.run("a", "late", rows=1, has_left=stays)
        assert refused.value.status == 503
        models.go.set()
        assert [request.answer for request in await asyncio.gather(*tasks)] == ["first!", "p!"]
        await closing

    asyncio.run(scene())


def test_who_has_just_been_answered_is_expected_again(monkeypatch):
    """One was answered and two wait: three are expected, and taken as soon as they are there. So it goes on."""
    monkeypatch.setattr(serve_queue, "GAP_SECONDS", 60.0)

    async def scene():
        models = Models()
        queue, _ = queue_of(models, gather_seconds=60.0)
        first = await start(queue, models)
        tasks = await waiting(queue, "p", "q")
        models.go.set()
        await first
        await asyncio.sleep(0.05)
        assert models.batches == [["first"]]  # teeth: without patience the two would have gone alone
        tasks += await waiting(queue, "first again")
        await asyncio.gather(*tasks)
        await asyncio.gather(*await waiting(queue, "s", "t", "u"))
        assert models.batches == [["first"], ["p", "q", "first again"], ["s", "t", "u"]]
        await queue.close()

    asyncio.run(scene())
