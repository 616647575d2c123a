from dml.runtime.text import ProgressMeter


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_speed_is_that_since_the_last_line_and_the_time_left_that_of_all() -> None:
    clock = Clock()
    meter = ProgressMeter(interval=30, clock=clock)
    clock.seconds += 20
    assert not meter.advance(64)
    clock.seconds += 20
    assert meter.advance(64)
    assert meter.line(left=180) == "3 images/s, 1:00:00 left"
    clock.seconds += 20
    assert not meter.advance(640)
    clock.seconds += 12
    assert meter.advance(640)
    assert meter.line(left=10) == "40 images/s, 0:03:00 left"


def test_the_first_line_may_come_earlier() -> None:
    clock = Clock()
    meter = ProgressMeter(interval=30, first=5, clock=clock)
    clock.seconds += 6
    assert meter.advance(60)
    assert meter.line(left=1) == "10 images/s, 0:00:06 left"
    clock.seconds += 6
    assert not meter.advance(60)
    clock.seconds += 24
    assert meter.advance(60)


def test_a_pause_is_no_part_of_the_speed_but_of_the_time_left() -> None:
    clock = Clock()
    meter = ProgressMeter(interval=30, clock=clock)
    clock.seconds += 100
    meter.pause(60)
    assert meter.advance(80)
    assert meter.line(left=1) == "2 images/s, 0:01:40 left"
