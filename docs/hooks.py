"""What the site adds to MkDocs: notebooks as pages.

A notebook's Markdown cells are the page; code cells become `python` blocks, what they printed `text` blocks, pictures
stand in the page itself. Nothing is executed here: the tests do that, and `make notebooks` writes the outputs.
"""

import json
import re
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Notebooks are pages."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page = File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=as_markdown(file.content_string))
        files.append(page)
    return files


def on_config(config: Any) -> Any:
    config.nav = json.loads(json.dumps(config.nav).replace(".ipynb", ".md"))
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links to notebooks, which are right in a checkout, lead to their pages."""
    return re.sub(r"(\]\([\w./-]+)\.ipynb", r"\1.md", markdown)


def as_markdown(notebook: str) -> str:
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown for output in cell.get("outputs", ()) if (shown := _output(output))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![What the code above draws](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"```text\n{text}\n```" if text and output.get("name") != "stderr" else ""
