"""A hook of mkdocs: files outside docs/ that a page links to, as `../examples/x.py`, come along with the site.

On the repository's own pages the links lead to the files themselves; in the site, to copies below `repository/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds what the pages link to outside docs/; PluginError where there is no such file."""
    root = Path(config.config_file_path).parent
    for page in list(files.documentation_pages()):
        for path, _ in OUTSIDE.findall(page.content_string):
            source = root / path
            if not source.is_file() or source.suffix == ".md":
                raise PluginError(f"{page.src_uri}: {path} is no file that can come along with the site")
            if files.get_file_from_path(f"repository/{path}") is None:
                files.append(File.generated(config, f"repository/{path}", abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leads links outside docs/ to the copies."""
    return OUTSIDE.sub(r"](repository/\1\2)", markdown)
