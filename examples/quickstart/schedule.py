"""Changes the schedule of the app from a process of its own, while beats and workers run."""

import argparse

from app import app

from redbeat_lite import EntryExists, EntryNotFound, Schedules, every

schedules = Schedules(app)


def add(name: str, seconds: float, words: str) -> None:
    schedules.add(name, "app.say", every(seconds), args=(words,))


def show() -> None:
    for entry in schedules.values():
        when = entry.next_run_at.astimezone(app.timezone).isoformat(" ", "seconds") if entry.next_run_at else "paused"
        print(f"{when:25}  {entry.name:25}  {entry.total_run_count:5} runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what is stored, in the order it fires")
    adding = commands.add_parser("add", help="say something every so often")
    adding.add_argument("name")
    adding.add_argument("seconds", type=float)
    adding.add_argument("words")
    for command in ("pause", "resume", "remove"):
        commands.add_parser(command).add_argument("name")
    args = parser.parse_args()
    try:
        if args.command == "list":
            show()
        elif args.command == "add":
            add(args.name, args.seconds, args.words)
        else:
            getattr(schedules, args.command)(args.name)
    except (EntryExists, EntryNotFound) as exc:
        parser.exit(1, f"{exc}\n")


if __name__ == "__main__":
    main()
