"""One browser for all tests that render. Without a Chromium these tests fail: nothing here may be skipped in silence."""

from collections.abc import Iterator

import pytest

from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.find import find_chromium
from watersmeet.pipelines.browser.render import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        find_chromium()
    except RenderError as error:
        pytest.fail(f"this test renders pages and needs a Chromium: {error}", pytrace=False)
    with Browser(timeout_s=60, settle_ms=0) as one:
        yield one
