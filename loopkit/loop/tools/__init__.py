"""Tools of a loop: registry, schemas, execution, results, and changes since an epoch began."""
