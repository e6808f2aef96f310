"""Peak memory, from the lifetimes of tensors and the allocator that serves them."""
