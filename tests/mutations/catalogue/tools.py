"""Faults in the commands: the server, digests and the parts of a site."""

from __future__ import annotations

from ..mutation import Mutation, unit

__all__ = ["TOOLS"]

TOOLS = (
    Mutation(
        "server.rebinding",
        "py_src/capstan_host/headless/static_server.py",
        """        except ValueError:
            return False
        return True

    def is_of_a_model""",
        """        except ValueError:
            return True
        return True

    def is_of_a_model""",
        "any host name is answered, so that another page may read what is served",
        unit("build_server::test_only_who_addresses_this_machine_is_answered"),
    ),
    Mutation(
        "server.linked_out",
        "py_src/capstan_host/headless/served_files.py",
        'return file.open("rb") if file.is_file() and file.is_relative_to(base.resolve()) else None',
        'return file.open("rb") if file.is_file() else None',
        "a link leads out of the served folder",
        unit("build_server::test_nothing_outside_the_served_folders_is_reachable"),
    ),
    Mutation(
        "server.dribbled",
        "py_src/capstan_host/headless/static_server.py",
        """        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
""",
        """        left = REQUEST_SECONDS
""",
        "a request has its time again with each byte",
        unit("build_server::test_a_request_that_comes_in_byte_by_byte_is_given_up"),
    ),
    Mutation(
        "server.unread",
        "py_src/capstan_host/headless/static_server.py",
        "self.connection.settimeout(STALL_SECONDS)",
        "self.connection.settimeout(None)",
        "a client that does not read keeps its connection",
        unit("build_server::test_clients_that_do_not_take_their_replies_keep_nobody_out"),
    ),
    Mutation(
        "server.range_end",
        "py_src/capstan_host/headless/served_files.py",
        "return (start, end - start + 1) if start < size else (0, 0)",
        "return (start, end - start) if start < size else (0, 0)",
        "a range lacks its last byte",
        unit("build_server::test_compressed_forms_are_served_to_who_takes_them"),
    ),
    Mutation(
        "server.if_range",
        "py_src/capstan_host/headless/static_server.py",
        'wanted = self.headers.get("Range") if self.headers.get("If-Range", etag) == etag else None',
        'wanted = self.headers.get("Range")',
        "a part of a changed file is sent",
        unit("build_server::test_an_unchanged_file_is_not_sent_again_and_a_stale_range_is_sent_whole"),
    ),
    Mutation(
        "digests.stale",
        "py_src/capstan_host/digests.py",
        'same = kept["key"] == list(key)',
        'same = kept["key"][0] == key[0]',
        "digests of a file that has changed since are served",
        unit("build_digests::test_they_are_kept_until_the_file_changes"),
    ),
    Mutation(
        "site.missing_file",
        "buildtools/site.py",
        'if last["digest"] == digest and all((SITE / file).is_file() for file in last["files"]):',
        'if last["digest"] == digest:',
        "a part of the site whose file is gone is not made again",
        unit("build_environment::test_a_part_of_the_site_is_made_again_only_when_something_changed"),
    ),
    Mutation(
        "environment.stamp_first",
        "buildtools/environment.py",
        """        self.work()
        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        self.stamp.write_text(self.digest())
""",
        """        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        self.stamp.write_text(self.digest())
        self.work()
""",
        "a stage that was interrupted counts as done",
        unit("build_environment::test_an_interrupted_stage_does_not_look_done_even_if_it_once_was"),
    ),
    Mutation(
        "compressed.larger",
        "buildtools/compressed.py",
        "if form.stat().st_size < path.stat().st_size:",
        "if form.stat().st_size:",
        "a file that compression makes larger is sent compressed",
        unit("compressed::test_files_that_get_smaller_have_both_forms_beside_them"),
    ),
)
