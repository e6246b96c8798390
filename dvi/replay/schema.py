"""Tables of the replay store, in SQL that SQLite and PostgreSQL share.

Owns names and types of columns; knows neither connections nor pragmas. Small columns and content
stand in two tables, so that marking a row as kept or looking for the oldest rows moves no content.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 1
TRAINER = "trainer"  # the one lease there is
GONE = ""  # in writers: all that have no trace any more, with the highest of their seqs

metadata = MetaData()

schema_info = Table(
    "dvi_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("store_id", String(32), nullable=False),
)

writers = Table(
    "writers",
    metadata,
    Column("writer", String(64), primary_key=True),
    # A seq is not given out again after the newest traces were deleted, nor (GONE) after all were.
    Column("last_seq", BigInteger, nullable=False),
)

totals = Table(  # one row, changed in the transaction that changes traces
    "totals",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("kept_rows", BigInteger, nullable=False),
    Column("kept_bytes", BigInteger, nullable=False),
)

purges = Table(  # one row; a server that remembers answers has to notice a purge by others
    "purges",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
)

leases = Table(  # who does what only one process of all machines may do
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", Text, nullable=False),  # empty: given back
    Column("term", BigInteger, nullable=False),  # grows with every taking
    Column("beat", BigInteger, nullable=False),  # grows while the holder lives
)

traces = Table(
    "traces",
    metadata,
    Column("writer", String(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("request_id", Text, nullable=False),
    Column("choice_index", Integer, nullable=False),
    Column("stored_s", Float(53), nullable=False),  # Unix time of the append
    Column("kept", Integer, nullable=False),  # 1: in the trainer's memory, evicted last
    Column("num_bytes", BigInteger, nullable=False),
    Column("domain", Text, nullable=False),
    Column("user_hash", Text, nullable=False),
    UniqueConstraint("request_id", "choice_index", name="one_row_a_choice"),
    Index("eviction_order", "kept", "stored_s", "writer", "seq", "num_bytes"),
)

contents = Table(
    "contents",
    metadata,
    Column("writer", String(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("header", Text, nullable=False),
    Column("prompt_ids", LargeBinary, nullable=False),
    Column("output_ids", LargeBinary, nullable=False),
    Column("top_ids", LargeBinary, nullable=False),
    Column("top_logits", LargeBinary, nullable=False),
    Column("logsumexp", LargeBinary, nullable=False),
    Column("rounds", LargeBinary, nullable=False),
)
