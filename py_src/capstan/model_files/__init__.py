"""A model's files: where they are, what they say, whether the model fits, and how it is opened."""
