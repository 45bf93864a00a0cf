"""Extensions of Sphinx that make the documentation a site."""
