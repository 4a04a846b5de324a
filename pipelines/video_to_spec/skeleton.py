"""`flow.spec.ts`: the steps of a recording as a Playwright test to start from.

It uses no syntax beyond JavaScript's own, so it can be checked and run with or without TypeScript. Where the recording
does not tell what a test needs, a comment says so.
"""

import json
from collections.abc import Iterator

from watersmeet.pipelines.video_to_spec.markdown import clock, in_words
from watersmeet.pipelines.video_to_spec.spec import Spec, Step

_HIDDEN = frozenset("\N{BULLET}*\N{BLACK CIRCLE}")


def playwright_test(spec: Spec) -> str:
    """The text of the test."""
    return "\n".join(_lines(spec)) + "\n"


def _lines(spec: Spec) -> Iterator[str]:
    width, height = spec.source.width, spec.source.height
    yield f"// What was seen in {_comment(spec.source.path)}, as a test to start from."
    yield "// BASE_URL: where the product runs. FLOW_PASSWORD: what is typed where the recording shows only dots."
    yield 'import { expect, test } from "@playwright/test";'
    yield ""
    yield f"test({_text('flow of ' + spec.source.path)}, async ({{ page }}) => {{"
    yield f"  await page.setViewportSize({{ width: {width}, height: {height} }});"
    yield '  await page.goto(process.env.BASE_URL ?? "/");'
    titles = {screen.id: screen.title for screen in spec.screens}
    for step in spec.steps:
        yield ""
        yield f"  await test.step({_text(f'{step.index}. {in_words(step)} at {clock(step.start_s)}')}, async () => {{"
        for line in _act(step, height):
            yield f"    {line}"
        if step.to_screen != step.from_screen:
            yield f"    await expect(page.getByText({_text(titles[step.to_screen])}).first()).toBeVisible();"
        yield "  });"
    yield "});"


def _act(step: Step, height: int) -> Iterator[str]:
    match step.action:
        case "click":
            yield from _point(step, "click")
        case "hover":
            yield from _point(step, "hover")
        case "type":
            yield from _type(step)
        case "key" if step.text:
            yield f"await page.keyboard.press({_text(step.text)});"
        case "key":
            yield "// Which key was pressed is not known."
        case "scroll":
            distance = round(height * 0.6)
            wheel = {"up": (0, -distance), "left": (-distance, 0), "right": (distance, 0)}.get(
                step.text or "", (0, distance)
            )
            yield f"await page.mouse.wheel({wheel[0]}, {wheel[1]});"
        case "navigate":
            yield "// The address is not known."
            yield f'await page.goto(process.env.URL_OF_STEP_{step.index} ?? "/");'
        case _:
            yield f"await page.waitForTimeout({round(1000 * (step.end_s - step.start_s))});"


def _point(step: Step, how: str) -> Iterator[str]:
    if step.target:
        yield f"await page.getByText({_text(step.target)}, {{ exact: true }}).first().{how}();"
    elif step.box:
        x, y = round((step.box[0] + step.box[2]) / 2), round((step.box[1] + step.box[3]) / 2)
        yield "// It has no text, so this is where it was."
        yield f"await page.mouse.{'click' if how == 'click' else 'move'}({x}, {y});"
    else:
        yield "// What was pressed is not known."


def _type(step: Step) -> Iterator[str]:
    value = _text(step.text or "")
    if step.text and set(step.text) <= _HIDDEN:
        value = 'process.env.FLOW_PASSWORD ?? ""'
    if step.target:
        name = _text(step.target)
        yield f"await page.getByLabel({name}).or(page.getByPlaceholder({name})).first().fill({value});"
    elif step.box:
        x, y = round((step.box[0] + step.box[2]) / 2), round((step.box[1] + step.box[3]) / 2)
        yield f"await page.mouse.click({x}, {y});"
        yield f"await page.keyboard.insertText({value});"
    else:
        yield "// Which field it was is not known."


def _text(text: str) -> str:
    # the two line ends of Unicode that are none in JSON, and what would end a script in a page
    return json.dumps(text, ensure_ascii=True)


def _comment(text: str) -> str:
    return " ".join(text.split())
