"""Progress of a training run: a bar on a terminal, plain lines elsewhere."""

import io

from watersmeet.cli.console import plain_steps, show_steps

RECORD = {"loss": 1.23456, "tokens_per_second": 4321.0, "step_seconds": 2.0}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_for_the_first_step_the_last_and_one_in_ten_seconds():
    out, now = io.StringIO(), iter([0.0, 1.0, 2.0, 12.5, 13.0, 13.1])
    progress = plain_steps(400, out, clock=lambda: next(now))
    for step in (1, 2, 3, 4, 5, 400):
        progress(step, RECORD)
    assert out.getvalue().splitlines() == [
        "step 1/400  loss 1.2346  4,321 tokens/s  left 13 min",
        "step 4/400  loss 1.2346  4,321 tokens/s  left 13 min",
        "step 400/400  loss 1.2346  4,321 tokens/s  left 0 s",
    ]


def test_a_bar_on_a_terminal_and_lines_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with show_steps(10, out) as (progress, say):
        progress(3, RECORD)
        say("held-out [bold] loss")
    assert "3/10" in out.getvalue() and "4,321 tokens/s" in out.getvalue() and "left 14 s" in out.getvalue()
    assert "held-out [bold] loss" in out.getvalue()
