"""Hooks of mkdocs: pages made from the program, and links to files outside of docs/."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.generate import commands, python_api, tables
from neuralpower.version import __version__

ROOT = Path(__file__).parents[2]
MADE = {
    "reference/commands.md": commands.commands_page,
    "reference/python.md": python_api.api_page,
    "reference/devices.md": tables.devices_page,
    "reference/predictors.md": tables.predictors_page,
    "reference/models.md": tables.models_page,
    "reference/kinds.md": tables.kinds_page,
}
OUTSIDE = re.compile(r"\]\((?:\.\./)+models/([\w.-]+\.md)(#[\w-]+)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version on every page, and link to the repository that the checkout comes from."""
    config.site_name = f"{config.site_name} {__version__}"
    config.copyright = f"neuralpower {__version__}, Apache-2.0"
    git = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    if address := source_url(os.environ.get("CI_PROJECT_URL") or found.stdout.strip()):
        config.repo_url, config.repo_name = address, "source"
    return config


def source_url(remote: str) -> str:
    """The page of a repository, given what git calls it; "" for a folder of this machine."""
    found = re.fullmatch(r"(?:https://(?:[^@/]+@)?|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    return "" if found is None else f"https://{found[1]}/{found[2]}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages, the predictors' cards, and the Markdown files outside of docs/."""
    for place, made in MADE.items():
        files.append(File.generated(config, place, content=made()))
    for card in sorted((ROOT / "models").glob("*.md")):
        files.append(File.generated(config, f"predictors/{card.name}", content=card.read_text()))
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (ROOT / f"{name}.md").read_text()
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to cards in models/ lead to their pages."""
    up = "../" * page.file.src_uri.count("/")
    return OUTSIDE.sub(rf"]({up}predictors/\1\2)", markdown)
