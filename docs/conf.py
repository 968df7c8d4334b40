"""The book: sections are scripts of cells, shown with the outputs of a run. Building it runs nothing.

`make book` builds it. `experiments` in this folder is a link to ../experiments.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from section_page import sections  # noqa: E402

from jaxperf.chapter.notebooks import repository as _repository  # noqa: E402

repository = _repository()  # "" while pyproject.toml names no owner: then the book has no link into it

project = "jaxperf"
author = "the jaxperf authors"
html_title = "Computational performance in JAX"
extensions = [
    "myst_nb", "sphinx_design", "sphinx_copybutton",
    "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "book", "gallery",
]  # fmt: skip

# The text of a section comes from its script, and the outputs from the notebooks in `book_results`.
include_patterns = ["*.md", "api/*.md", *(f"experiments/{name}.py" for name in sections())]
source_suffix = {".md": "myst-nb", ".py": "myst-nb"}
nb_custom_formats = {".py": ["nbformat.reads", {"as_version": 4}]}  # section_page.py makes them
nb_execution_mode = "off"
nb_code_prompt_show = nb_code_prompt_hide = "Answer: code"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 4
default_role = "code"  # docstrings have Markdown's backticks

html_context = {"default_mode": "auto"}
html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = [("sliders.js", {"defer": "defer"})]
html_favicon = "_static/favicon.svg"
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_theme_options = {
    "repository_url": repository,
    "repository_branch": "main",
    "path_to_docs": "docs",
    "use_repository_button": bool(repository),
    "use_source_button": bool(repository),
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    **{f"navbar_{place}": [] for place in ("start", "center", "end", "persistent")},  # no bar at the top
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "github-dark",
}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

autodoc_typehints = "description"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
maximum_signature_line_length = 88
add_module_names = False
napoleon_google_docstring = True
