"""A table of a report as lines."""

from brimful.report.table_model import Table, text_of


def draw_table(table: Table) -> list[str]:
    """Draw a table with aligned columns, each row followed by its remark.

    >>> draw_table(Table([{"capacity": 64, "packs": 1200}, {"capacity": 128, "packs": 9}], ["", "← best"]))
    ['  capacity  packs', '        64  1,200', '       128      9  ← best']
    """
    columns = [[head, *(text_of(row[head]) for row in table.rows)] for head in table.rows[0]]
    widths = [max(map(len, column)) for column in columns]
    lines = ["".join(map("  {:>{}}".format, row, widths)) for row in zip(*columns, strict=True)]
    for index, remark in enumerate(table.remarks, start=1):
        lines[index] += f"  {remark}" if remark else ""
    return lines
