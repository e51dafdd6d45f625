"""Who guesses ahead, one drafter a file. They know `core` only: what they need besides is handed to them."""
