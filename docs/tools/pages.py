"""What MkDocs is told beyond Markdown: pages and notebooks of the gallery, the page for contributors, formulas.

Pages of the gallery are made of a script in `gallery/` and of what `make gallery` stored of its run in `docs/gallery/`.
Nothing is run here. Formulas are written as GitHub reads them (a fence "math", or $`...`$ in a line) and become MathML,
which browsers draw without a script.
"""

import ast
import base64
import html
import itertools
import json
import re
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from mkdocs.structure.files import File
from nbformat import v4 as cells

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```math\n(.*?)^```$", re.M | re.S)
SHIM = re.compile(r'<script src="https://[^"]*iframe-worker[^"]*"></script>')
INLINE = re.compile(r"\$`([^`]+)`\$")
ORDER = (
    ("Images and fields", ("ising_denoising", "potts_segmentation", "rbm_digits", "imputation", "spin_glass")),
    ("Statistics", (
        "variable_selection", "mixture_labels", "contingency_table", "capture_recapture", "coal_mining",
        "model_comparison", "earthquakes", "asia", "network_structure", "epidemic",
    )),
    ("Discrete and real", (
        "iris_petals", "coal_rates", "recessions", "occupancy", "hares", "spike_and_slab", "two_lines", "hidden_parts",
        "karate_club", "law_school_test",
    )),
    ("Learning", ("quantised_weights", "binary_network", "paper_mixture")),
    ("Search", ("maxcut", "sudoku")),
)  # fmt: skip


# ---- formulas


def mathml(formula: str, display: str = "inline") -> str:
    """A formula of LaTeX in MathML, with the space after names of functions that TeX would set."""
    return re.sub(
        r"(<mi>(?:log|exp|det)</mi>)(?!<mo[^>]*>&#x00028;)",
        r'\1<mspace width="0.17em"/>',
        convert(formula, display=display),
    )


def on_page_markdown(markdown: str, *, page, **_) -> str:
    """Formulas give way to words that Markdown leaves alone."""
    page.formulas = []

    def kept(html_text: str) -> str:
        page.formulas.append(html_text)
        return f"FORMULA{len(page.formulas) - 1}ENDS"

    displayed = FENCE.sub(
        lambda found: kept(f'<span class="formula">{mathml(found[1].strip(), "block")}</span>'), markdown
    )
    return INLINE.sub(lambda found: kept(mathml(found[1])), displayed)


def on_page_content(html: str, *, page, **_) -> str:
    """The formulas come back, as MathML."""
    return re.sub(r"FORMULA(\d+)ENDS", lambda found: page.formulas[int(found[1])], html)


# ---- nothing from other sites


def on_post_page(output: str, *, page, **_) -> str:
    """The script that lets the search work in plain files is our own, not one from another site."""
    up = "../" * page.url.count("/")
    return SHIM.sub(f'<script src="{up}assets/worker.js"></script>', output)


def on_post_template(output: str, *, template_name, **_) -> str:
    """The page of missing addresses has no search."""
    return SHIM.sub("", output) if template_name == "404.html" else output


# ---- the gallery


def problems() -> list[str]:
    """The names of the worked problems that have been run, in the order of the page."""
    return [name for _, names in ORDER for name in names if (ROOT / "docs" / "gallery" / f"{name}.json").exists()]


def parts(name: str) -> dict:
    """Title, text, caption, code, output and record of a worked problem."""
    source = (ROOT / "gallery" / f"{name}.py").read_text(encoding="utf-8")
    title, _, text = ast.get_docstring(ast.parse(source)).partition("\n")
    text, _, caption = text.rpartition("\n\nFigure: ")
    stored = ROOT / "docs" / "gallery" / name
    return {
        "title": title,
        "text": text.strip(),
        "caption": " ".join(caption.split()),
        "code": source.split('"""', 2)[2].strip().replace("  # fmt: skip", ""),  # a word to our formatter
        "output": stored.with_suffix(".txt").read_text(encoding="utf-8").rstrip(),
        "record": json.loads(stored.with_suffix(".json").read_text(encoding="utf-8")),
    }


def _picture(name: str, part: dict, *, extra: str = "") -> str:
    width, height = part["record"]["size"]
    alt = html.escape(part["caption"], quote=True)
    return f'<img src="{name}.png" alt="{alt}" width="{width}" height="{height}" loading="lazy"{extra}>'


def how_it_ran(name: str, record: dict) -> str:
    """Where the stored output comes from."""
    versions = ", ".join(f"{package} {number}" for package, number in record["versions"].items())
    cpu = f", {record['cpu_seconds']} s of processor time" if "cpu_seconds" in record else ""
    return (
        f"The output is that of one run of `python gallery/{name}.py`: {record['seconds']} s in all{cpu}, on "
        f"{record['cpus']} CPU cores shared with other work, {record['date']} ({versions})."
    )


def problem_page(name: str) -> str:
    """The page of one worked problem, in Markdown; scripts are wide, and the page has few headings: no contents."""
    part = parts(name)
    return "\n".join([
        "---\nhide:\n  - toc\n---\n",
        f"# {part['title']}\n",
        part["text"] + "\n",
        f'<figure class="plot" markdown="0">{_picture(name, part)}',
        f"<figcaption>{html.escape(part['caption'])}</figcaption></figure>\n",
        "## What it prints\n",
        f"```text\n{part['output']}\n```\n",
        how_it_ran(name, part["record"]) + "\n",
        "## The script\n",
        f"As a notebook, with its output: [{name}.ipynb]({name}.ipynb).\n",
        f"```python\n{part['code']}\n```\n",
    ])  # fmt: skip


def code_cells(code: str) -> list[str]:
    """A script in three parts: what prepares, what samples and prints, what draws."""
    body = ast.parse(code).body
    speaking = {"tz.sample", "tz.maximize", "print"}
    defined = [node for node in body if isinstance(node, ast.FunctionDef)]
    calls = {node: {ast.unparse(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)} for node in body}
    speaking |= {node.name for node in defined if calls[node] & speaking}
    samples = next(i for i, node in enumerate(body) if node not in defined and calls[node] & speaking)
    draws = next(i for i, node in enumerate(body) if ".png" in ast.unparse(node) or "themed" in calls[node])
    lines = code.splitlines()
    edges = (0, body[samples].lineno - 1, body[draws].lineno - 1, len(lines))
    return ["\n".join(lines[i:j]).strip() for i, j in itertools.pairwise(edges)]


def notebook(name: str) -> str:
    """The script as a notebook that shows its last run: the text beside what printed it, the picture below."""
    part = parts(name)
    prepares, samples, draws = code_cells(part["code"])
    picture = base64.b64encode((ROOT / "docs" / "gallery" / f"{name}.png").read_bytes()).decode()
    printed = cells.new_output("stream", name="stdout", text=part["output"] + "\n")
    shown = cells.new_output("execute_result", {"image/png": picture, "text/plain": part["caption"]}, execution_count=3)
    show = f'from IPython.display import Image\n\nImage("{name}.png")'
    made = cells.new_notebook(
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "title": part["title"],
        },
        cells=[
            cells.new_markdown_cell(f"# {part['title']}\n\n{part['text']}\n\n{how_it_ran(name, part['record'])}"),
            cells.new_code_cell(prepares, execution_count=1),
            cells.new_code_cell(samples, execution_count=2, outputs=[printed]),
            cells.new_code_cell(f"{draws}\n\n{show}", execution_count=3, outputs=[shown]),
        ],
    )
    for i, cell in enumerate(made.cells):
        cell["id"] = f"cell-{i}"  # the same each time
    nbformat.validate(made)
    return nbformat.writes(made)


def gallery_index() -> str:
    """The page of all worked problems."""
    shown = set(problems())
    lines = [
        "# Gallery\n",
        "Worked problems: each is one script that you can copy and run. Pictures and output come from real runs "
        "(`make gallery`).\n",
    ]
    for heading, names in ORDER:
        cards = [name for name in names if name in shown]
        if not cards:
            continue
        lines.append(f"## {heading}\n")
        lines.append('<div class="cards" markdown="0">')
        for name in cards:
            part = parts(name)
            lines.append(
                f'<a class="card" href="{name}.html"><span class="picture">{_picture(name, part)}</span>'
                f"<span>{html.escape(part['title'])}</span></a>"
            )
        lines.append("</div>\n")
    return "\n".join(lines)


# ---- what is handed to MkDocs


def on_config(config):
    """The gallery's part of the navigation."""
    for entry in config.nav:
        if "Gallery" in entry:
            entry["Gallery"] = ["gallery/index.md", *(f"gallery/{name}.md" for name in problems())]
    return config


def on_files(files, config):
    """Pages that stand in no file of docs/."""
    made = {"gallery/index.md": gallery_index(), **{f"gallery/{name}.md": problem_page(name) for name in problems()}}
    made["contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    made |= {f"gallery/{name}.ipynb": notebook(name) for name in problems()}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files
