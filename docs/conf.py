"""Settings of Sphinx for the site of the documentation: `make docs`.

The pages are Markdown that reads on GitHub as well. What only the site can show stands in comments there
(`<!-- picture: NAME -->`) or in blocks that GitHub draws itself (`mermaid`).
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs import diagrams, generated, line_counts, pictures, references  # noqa: E402 (found by the line above)

# Keras looks for TensorFlow where nothing is said.
os.environ.setdefault("KERAS_BACKEND", "torch")

project = "Ebbtide"
author = "the developers of Ebbtide"
copyright = author
release = version = version_of("ebbtide")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_heading_anchors = 4
myst_fence_as_directive = {"mermaid"}
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
# As they are written, not what they stand for.
autodoc_type_aliases = {name: name for name in ("Array", "Bools", "Floats", "Integers", "Time")}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
# Single backticks in docstrings are code.
default_role = "code"

html_theme = "furo"
html_title = f"Ebbtide {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
# `make docs-links`.
linkcheck_timeout = 20
linkcheck_workers = 4


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("mermaid", diagrams.Mermaid)
    app.connect("builder-inited", pictures.draw)
    app.connect("source-read", line_counts.put_in)
    app.connect("source-read", pictures.put_in)
    app.connect("source-read", generated.put_in)
    app.connect("source-read", references.lead_on)
    app.connect("autodoc-process-signature", references.plain_signature)
    # Before napoleon reads its sections.
    app.connect("autodoc-process-docstring", references.as_restructured_text, priority=400)
