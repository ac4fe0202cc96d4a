"""Draws the README's badges from pyproject.toml. Run it after a change; a test compares them.

They are files, so that the page loads nothing from another host.
"""

import tomllib
from pathlib import Path

PICTURES = Path(__file__).parent
PROJECT = PICTURES.parents[1] / "pyproject.toml"
LETTER = 6.6  # the width of one, in pixels, at 11 pixels


def badge(subject: str, says: str, colour: str) -> str:
    """The SVG: the subject on grey, what is said of it on the colour."""
    left, right = (round(len(text) * LETTER + 14) for text in (subject, says))
    texts = "".join(
        f'<text x="{x}" y="14" text-anchor="middle" textLength="{width - 14}">{text}</text>'
        for text, x, width in ((subject, left / 2, left), (says, left + right / 2, right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{subject}: {says}</title>"
        f'<rect width="{left + right}" height="20" rx="3" fill="#46536b"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" '
        f'fill="{colour}"/>'
        f'<g fill="#fff" font-family="system-ui, sans-serif" font-size="11">{texts}</g>'
        "</svg>\n"
    )


def badges() -> dict[str, str]:
    """The pictures by the names of their files."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    [status] = [one for one in project["classifiers"] if one.startswith("Development Status")]
    word = status.rpartition(" - ")[2].lower()
    python = project["requires-python"].removeprefix(">=")
    return {
        "badge-status.svg": badge("status", f"{word}, not released", "#a2541b"),
        "badge-python.svg": badge("python", f"{python}+", "#2559c8"),
        "badge-license.svg": badge("license", project["license"], "#0f7a58"),
    }


if __name__ == "__main__":
    for name, picture in badges().items():
        (PICTURES / name).write_text(picture, "utf-8")
