"""Parts of a trace: cut into stages, by request, by step of a decoder; and exchanges between them."""
