"""Attacks against a live service: a hostile client, an unlucky operator, a careless neighbour.

One module plays the attacks on one subject; every test tells what the attacker wants and fails if
he gets it. Short attacks carry no mark, slow ones are `@pytest.mark.long`.

* `target` (session): a service on loopback over a database of its own, in this process. All attacks
  share it, as strangers share a service: make queues of your own (`name_of_a_queue`), and leave it
  as you found it. An attack that needs other settings, or that may end the service, starts its own:
  `tests.service` has `running`, for a service in this process, and `ServeProcess`.
* `secured` (session): the same with keys; `tests/api/access.py` says how to make more of them.
* `bystander`: somebody else's flow at that service, who renews his lease all the time. When the
  test ends he has been served throughout: no call of his failed, and his partition is still his.
* `Wire` (`tests/attacks/wire.py`): a connection that sends bytes as they are, however wrong.
"""
