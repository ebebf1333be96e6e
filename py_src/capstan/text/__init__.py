"""Text around the tokens: chat templates, a tokenizer's regular expressions, ids that become text."""
