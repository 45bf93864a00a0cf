"""Interactive charts of a page: plotly figures built in Python, with the controls that change them."""
