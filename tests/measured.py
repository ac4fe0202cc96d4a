"""The last hour of a queue, as if a service had measured it."""

import psycopg


def measured(database_url: str, queue: str, rounds: int) -> None:
    """As if the service had measured the queue for so many rounds, with a lag that rose by 30."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO counterpoise.measurements SELECT id, "
            "extract(epoch FROM clock_timestamp())::bigint - 30 * (%s - round), "
            "30 * round, 90 * round FROM counterpoise.queues, generate_series(0, %s) AS round "
            # The service may have measured it in the same second.
            "WHERE name = %s ON CONFLICT DO NOTHING",
            (rounds, rounds, queue),
        )
        # Half of what was looked at was committed within a second, 99 % within 5 s.
        connection.execute(
            "INSERT INTO counterpoise.commit_ages "
            "SELECT id, extract(epoch FROM clock_timestamp())::bigint - 300, "
            "'{0,0,0,0,0,0,0,500,0,490,10}' FROM counterpoise.queues WHERE name = %s",
            (queue,),
        )
