"""Text as sentencepiece ids, with a vocabulary of symbols that no text can produce."""
