"""HTTP to one server: connections, responses, cancellation, refusals."""
