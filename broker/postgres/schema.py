"""What a database lacks of the schema that the migrations make.

A restore that went wrong leaves tables that look right: `pg_restore` goes on after an error unless
it is told otherwise, and what it could not make is missing. The service gives no error then. It is
only no longer held to what a lost primary key, rule or privilege ensured.

So `migrations/*/schema.txt` lists what the newest revision of each tree makes, one object a line:
its name, and behind ` = ` its further properties. A test holds the files to the migrations. What
versions of Postgres write differently is not compared: the condition of an index or a check, the
source of a function. A restore loses objects, and changes none.

* Objects of other makers do not matter: an index or a grant that an administrator added.
* A group of clients (`… to ROLE`) may have no access: it belongs to the whole server, and not every
  service may make one. A group with access has all of its grants.
* Postgres opens each new function to PUBLIC. So a lost revocation is missing like an object.
* A database at another revision, made by a newer version or before a contraction, is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.postgres.connections import Connection, connect
from broker.postgres.migrations import CONTROL, LOG, RESTORE_AGAIN, MigrationFailed, Tree, databases

# Of the objects that are named in a message.
MOST_NAMED = 3
_OBJECTS = """
WITH here AS (
    SELECT c.oid, c.relkind, c.relacl, c.relrowsecurity, n.nspname || '.' || c.relname AS name
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'v')
), functions AS (
    SELECT p.prosecdef, n.nspname || '.' || p.proname AS short,
        format('%%s.%%s(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))
            AS name,
        coalesce(p.proacl, acldefault('f', p.proowner)) AS acl
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname = %(schema)s
), privileges AS (
    SELECT 'schema ' || nspname AS what, nspacl AS acl FROM pg_namespace
        WHERE nspname = %(schema)s
    UNION ALL SELECT 'table ' || name, relacl FROM here
    UNION ALL SELECT format('column %%s.%%s', name, attname), attacl
        FROM here JOIN pg_attribute ON attrelid = here.oid WHERE NOT attisdropped
    UNION ALL SELECT 'function ' || short, acl FROM functions
)
SELECT CASE relkind WHEN 'v' THEN 'view ' ELSE 'table ' END || name AS object, '' AS detail
    FROM here
UNION ALL SELECT format('column %%s.%%s', name, a.attname),
    concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
        CASE WHEN a.attidentity <> '' THEN 'identity' WHEN a.atthasdef THEN 'default' END,
        CASE WHEN a.attstattarget = 0 THEN 'no statistics' END)
    FROM here JOIN pg_attribute AS a ON a.attrelid = here.oid
    WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT format('%%s %%s of %%s', CASE contype WHEN 'p' THEN 'primary key'
        WHEN 'u' THEN 'unique constraint' WHEN 'f' THEN 'foreign key' ELSE 'check' END,
        conname, name),
    CASE WHEN contype = 'c' THEN '' ELSE pg_get_constraintdef(k.oid) END
    FROM here JOIN pg_constraint AS k ON k.conrelid = here.oid
    WHERE contype IN ('p', 'u', 'f', 'c')
UNION ALL SELECT format('index %%s of %%s', c.relname, name),
    concat_ws(' ', CASE WHEN i.indisunique THEN 'unique' END,
        CASE WHEN NOT i.indisvalid THEN 'not valid' END)
    FROM here JOIN pg_index AS i ON i.indrelid = here.oid JOIN pg_class AS c ON c.oid = i.indexrelid
    WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid)
UNION ALL SELECT format('trigger %%s of %%s', tgname, name),
    concat_ws(' ', tgfoid::regproc::text, CASE WHEN tgenabled <> 'O' THEN 'not enabled' END)
    FROM here JOIN pg_trigger AS t ON t.tgrelid = here.oid WHERE NOT tgisinternal
UNION ALL SELECT 'function ' || name, CASE WHEN prosecdef THEN 'as its owner' ELSE '' END
    FROM functions
UNION ALL SELECT 'row security of ' || name, '' FROM here WHERE relrowsecurity
UNION ALL SELECT concat(format('policy %%s of %%s', polname, name),
        (SELECT ' to ' || min(rolname) FROM pg_roles AS r WHERE r.oid = ANY (polroles))),
    CASE WHEN polpermissive THEN 'permissive' ELSE 'restrictive' END
    FROM here JOIN pg_policy ON polrelid = here.oid
UNION ALL SELECT format('grant of %%s on %%s to %%s', privilege_type, what, rolname), ''
    FROM privileges, aclexplode(acl) AS one JOIN pg_roles AS r ON r.oid = one.grantee
    WHERE rolname LIKE 'counterpoise\\_log\\_%%'
UNION ALL SELECT format('revocation of EXECUTE on function %%s from PUBLIC', short), ''
    FROM functions WHERE NOT EXISTS (SELECT FROM aclexplode(acl) AS one WHERE one.grantee = 0)
"""
# A table is restored whole or not at all, so one row shows that its rows are there.
_ROWS: Mapping[str, Mapping[str, str]] = {
    CONTROL.name: {
        "counterpoise.service": "true",
        "counterpoise.partitions": "EXISTS (SELECT FROM counterpoise.queues"
        " WHERE partition_count > 0)",
    },
    LOG.name: {
        "counterpoise_log.messages": "EXISTS (SELECT FROM counterpoise_log.partitions"
        " WHERE first_position < next_position)",
        "counterpoise_log.ends": "EXISTS (SELECT FROM counterpoise_log.partition_rows)",
        "counterpoise_log.sequences": "EXISTS (SELECT FROM counterpoise_log.publishers)",
    },
}

_WHOLE = ("table ", "view ", "function ")


def check(database_url: str, log_database_url: str | None = None) -> None:
    """Compare current tables with what the migrations make. Blocks.

    Raises MigrationFailed if something is missing, and DatabaseUnreachable.
    """
    missing: list[str] = []
    for tree, url in databases(database_url, log_database_url):
        with connect(url) as connection:
            missing += lacking(connection, tree)
    if missing:
        more = len(missing) - MOST_NAMED
        named = ", ".join(missing[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise MigrationFailed(
            f"The database is not as the migrations make it: {named}. {RESTORE_AGAIN}; or make by "
            "hand what is missing."
        )


def list_file(tree: Tree) -> Path:
    """The list of what the newest revision of a tree makes. Its first line is the revision."""
    return tree.location / "schema.txt"


def listed(connection: Connection, tree: Tree) -> list[str]:
    """The lines of such a list for the tables that are there. Raises psycopg.Error."""
    schema, _, _ = tree.version_table.partition(".")
    connection.execute("SET LOCAL search_path = pg_catalog")
    found = connection.execute(_OBJECTS, {"schema": schema}).fetchall()
    revision = f"SELECT version_num FROM {tree.version_table}".encode()
    return [
        *(str(number) for (number,) in connection.execute(revision)),
        *sorted(f"{name} = {detail}" if detail else name for name, detail in found),
    ]


def lacking(connection: Connection, tree: Tree) -> list[str]:
    """What is missing or different, each in words; empty at another revision.

    Raises psycopg.Error.
    """
    revision, *made = list_file(tree).read_text("utf-8").splitlines()
    found_revision, *lines = listed(connection, tree)
    if found_revision != revision:
        return []
    found = dict(map(_halves, lines))
    groups = {None, *(_group(name) for name in found if name.startswith("grant of USAGE"))}
    expected = [(name, detail) for name, detail in map(_halves, made) if _group(name) in groups]
    absent = [name for name, _ in expected if name not in found]
    # Tables, views and functions, whose further parts need no mention.
    whole = [name for name in absent if name.startswith(_WHOLE)]
    lost = [name.partition(" ")[2].partition("(")[0] for name in whole]
    parts = [name for name in absent if not any(one in name for one in lost)]
    missing = [f"no {name}" for name in whole + parts]
    missing += [
        f"{name} is '{found[name]}' instead of '{detail}'"
        for name, detail in expected
        if found.get(name, detail) != detail
    ]
    # Rows of tables that are there.
    for table, condition in {} if missing else _ROWS[tree.name].items():
        query = f"SELECT ({condition}) AND NOT EXISTS (SELECT FROM {table})"
        if connection.execute(query.encode()).fetchone() == (True,):
            missing.append(f"no rows in {table}")
    return missing


def _halves(line: str) -> tuple[str, str]:
    name, _, detail = line.partition(" = ")
    return name, detail


def _group(name: str) -> str | None:
    """The group of clients that a grant or a policy is for."""
    _, to, group = name.rpartition(" to ")
    return group if to else None
