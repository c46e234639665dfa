"""Opens directories of outputs with the readers that are installed: readers.py DIR ...

Prints `READER DIR ROWS` for each, or `READER missing`. Readers that take a directory get the
directory; DuckDB and polars get the glob of its tables, as docs/tables.md says.
"""

import importlib
import os
import sys


def pyarrow(directory):
    return importlib.import_module("pyarrow.parquet").read_table(directory).num_rows


def dataset(directory):
    return importlib.import_module("pyarrow.dataset").dataset(directory).to_table().num_rows


def pandas(directory):
    return len(importlib.import_module("pandas").read_parquet(directory))


def duckdb(directory):
    # DuckDB reads no directories, only globs.
    query = f"select count(*) from '{os.path.join(directory, '*.parquet')}'"
    return importlib.import_module("duckdb").connect().execute(query).fetchall()[0][0]


def polars(directory):
    # In a directory, polars reads `_SUCCESS` as a table.
    return importlib.import_module("polars").read_parquet(os.path.join(directory, "*.parquet")).height


def main():
    for package, readers in {
        "pyarrow": [pyarrow, dataset],
        "pandas": [pandas],
        "duckdb": [duckdb],
        "polars": [polars],
    }.items():
        try:
            importlib.import_module(package)
        except ImportError:
            print(f"{package} missing")
            continue
        for reader in readers:
            for directory in sys.argv[1:]:
                print(reader.__name__, directory, reader(directory))


if __name__ == "__main__":
    main()
