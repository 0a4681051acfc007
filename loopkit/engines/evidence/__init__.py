"""What a diagnosis is made from, and its result: the observation of a request, its prompt as tokens, and the diagnosis."""
