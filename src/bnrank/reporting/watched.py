"""A watched training on a page: headline, charts and a table of its layers."""

from bnrank.reporting.blocks import Block, Plot, Text, table
from bnrank.reporting.charts.watched import watched_headline, watched_view
from bnrank.training.watching import WatchRecord

ALL_LAYERS = 30  # rows beyond which the table scrolls in its box


def watched_blocks(record: WatchRecord, key: str) -> list[Block]:
    """Return the blocks of a watch: a sentence, remarks, charts, and a row per layer."""
    history, view = record.history, watched_view(record)
    steps, rows = history["step"].values, record.summary()
    blocks: list[Block] = [Text(watched_headline(record), "headline")]
    if len(steps):
        ranges = "Ranges in the table are from the first to the last, other numbers of the last."
        blocks.append(Text(f"{record.span}. {ranges}"))
    said = record.diverged  # in the headline
    blocks += [Text(f"{note[0].upper()}{note[1:]}.") for note in record.notes if note not in said]
    blocks += [Plot(key, view)] if view.groups[0].charts else []
    return [*blocks, *table(rows, f"Layers ({len(rows)})", whole=len(rows) <= ALL_LAYERS)]
