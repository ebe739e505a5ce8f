"""How Sphinx builds these pages: `make docs`."""

from redbeat_lite import __version__

project = "redbeat_lite"
copyright = "redbeat_lite contributors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"redbeat_lite {release}"
exclude_patterns = ["_build"]

# A page is read on GitHub too, where each heading is an anchor.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
