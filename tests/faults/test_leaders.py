"""Leaders that are killed, told to stop, frozen and thawed, under load: one stream all the same."""

from __future__ import annotations

from tests.faults.driver import On, Own, Publish


def test_a_killed_leader(own_server: Own, on: On, publish: Publish, lease: float) -> None:
    stage = on(own_server())
    stage.begin()
    while stage.left > 0:
        stage.pause(0.5, 1.5)
        leader = stage.leader()
        stage.struck(lease + 1.5)
        stage.kill(leader)
        stage.beat()
        stage.leader()
        stage.flows()
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.handovers == verdict.faults
    assert verdict.back < lease + 0.5 + 1 + verdict.withheld  # a period, until the next one is due
    publish("killed", verdict)


def test_a_leader_told_to_stop(own_server: Own, on: On, publish: Publish) -> None:
    stage = on(own_server())
    stage.begin()
    while stage.left > 0:
        stage.pause(0.5, 1.5)
        leader = stage.leader()
        stage.beat().says("standing by")
        stage.struck(1.5)
        stage.stop(leader)
        stage.leader()
        stage.flows()
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.handovers == verdict.faults
    assert verdict.back < 2 + verdict.withheld
    publish("stopped", verdict)


def test_a_leader_frozen_past_its_lease(own_server: Own, on: On, publish: Publish, lease: float) -> None:
    stage = on(own_server())
    stage.begin()
    while stage.left > 0:
        stage.pause(0.2, 1)
        leader = stage.leader()
        stage.struck(lease + 2)
        with stage.frozen(leader):
            stage.pause(lease + 0.6, lease + 1.5)
        stage.pause(0.5)
    verdict = stage.verdict()
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.handovers == verdict.faults
    assert verdict.back < lease + 0.5 + 1 + verdict.withheld
    publish("frozen", verdict)
