"""HTTP with one server: connections, responses, cancellation and refusals."""
