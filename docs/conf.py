# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings: the pages are the Markdown files of the repository, in their places (make docs). Nothing on them
is loaded from a network. The reading order is docs/_toc.yml, the one of docs/README.md."""

import os.path
import sysconfig

project = html_title = "oktopk"
extensions = ["myst_parser", "sphinx_external_toc", "autodoc2"]
include_patterns = ["*.md", "docs/**.md", "examples/**.md", "lab/**.md", "docs/**.rst", "build-docs/python/**.md"]
external_toc_path = "docs/_toc.yml"
external_toc_exclude_missing = False
myst_heading_anchors = 4
myst_enable_extensions = []
suppress_warnings = [
    "myst.header",  # a page may begin with a heading of any level, as on a code host
    "misc.highlighting_failure",  # blocks of C++ with "..." in them
]
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

package = os.path.join(sysconfig.get_paths()["purelib"], "oktopk")
assert os.path.exists(package), "the Python reference needs the package: pip install ."
autodoc2_packages = [{"path": os.path.relpath(package, os.path.dirname(os.path.dirname(__file__)))}]
autodoc2_output_dir = "build-docs/python"
autodoc2_render_plugin = "myst"
autodoc2_index_template = None
autodoc2_hidden_objects = {"private", "dunder", "inherited"}
autodoc2_module_all_regexes = [r"oktopk(\.torch)?"]
public = "torch|torch.checkpoint|mpi|metrics|flight|lightning|accelerate|transformers"  # docs/stability.md
autodoc2_skip_module_regexes = [rf"oktopk\.(?!({public})$).*"]
