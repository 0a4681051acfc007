"""The dataframes of `Logs`: schema, columns, building, and files."""
