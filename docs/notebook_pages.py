"""A hook of MkDocs: docs/notebooks/NAME.ipynb is also the page notebooks/NAME.md, with its stored outputs."""

import json
import re

from mkdocs.structure.files import File


def on_files(files, config):
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        cells = json.loads(file.content_string)["cells"]
        first, *rest = map(markdown, cells)
        note = f'This page is a notebook with its outputs: [{file.name}.ipynb]({file.name}.ipynb "download").'
        text = "\n\n".join([first, note, *rest])
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Makes links to notebooks links to their pages; a link with a title is to the file."""
    return re.sub(r"(\]\([\w/.]+)\.ipynb\)", r"\1.md)", markdown)


def markdown(cell):
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    tags = cell["metadata"].get("tags", [])
    parts = [f"```{'bash' if source.startswith('!') else 'python'}\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            kind = "chart" if "chart" in tags else "pictures"
            parts.append(f'<img class="{kind}" alt="{kind}" src="data:image/png;base64,{data["image/png"].strip()}">')
        else:
            text = "".join(output.get("text", data.get("text/plain", "")))
            parts.append(f"```{{ .text .output }}\n{text.rstrip()}\n```")
    return "\n\n".join(parts)
