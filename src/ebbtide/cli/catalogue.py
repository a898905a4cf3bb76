"""`ebbtide catalogue`: the user's own list prices and instance types, from clouds' price APIs and tables."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.cli.live_sources import google_headers
from ebbtide.cli.options import terminal
from ebbtide.cli.progress import progress
from ebbtide.errors import CloudError, InputError, unknown_name
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.list_prices import aws, azure, gcp
from ebbtide.market.list_prices.listed import PriceList
from ebbtide.market.list_prices.own_catalogue import Updated, update
from ebbtide.market.list_prices.skypilot import SkypilotTable
from ebbtide.market.price_store import PriceStore
from ebbtide.market.sources.web import Web

catalogue_app = typer.Typer(no_args_is_help=True, help="Instance types and on-demand list prices of one's own.")

# Variable with an API key of the Cloud Billing Catalog; without it, Google's standard chain gives a token.
_GOOGLE_KEY = "GOOGLE_API_KEY"
_SHOWN = 10

_Regions = list[str] | None


class TableFormat(StrEnum):
    """Format of a downloaded table."""

    SKYPILOT = "skypilot"


@catalogue_app.callback()
def _group() -> None:
    """Keep `update` a command of its own."""


@catalogue_app.command("update")
def update_command(
    into: Annotated[Path, typer.Option("--into", "-o", metavar="FOLDER", help="The catalogue to add to.")],
    of_aws: Annotated[_Regions, typer.Option("--aws", metavar="REGION", help="May be given again.")] = None,
    of_gcp: Annotated[
        _Regions,
        typer.Option("--gcp", metavar="REGION", help=f"May be given again. Needs {_GOOGLE_KEY} or a login."),
    ] = None,
    of_azure: Annotated[_Regions, typer.Option("--azure", metavar="REGION", help="May be given again.")] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="Another address of every API, for tests.")] = None,
) -> None:
    """Add what is new or has changed in the clouds' price lists to a catalogue, under today's date.

    Every command that has --instance-types takes the folder. If a cloud does not answer, the results of the
    others are kept, and so is what the folder had.

        ebbtide catalogue update --aws us-east-1 --azure eastus --into my-catalogue
    """
    asked = [
        (source, regions)
        for source, regions in (
            (aws.AwsPriceList(_web(endpoint_url or aws.ADDRESS, "AWS's price list")), of_aws),
            (gcp.GcpPriceList(_web(endpoint_url or gcp.ADDRESS, "the Cloud Billing Catalog", _google)), of_gcp),
            (azure.AzurePriceList(_web(endpoint_url or azure.ADDRESS, "Azure's Retail Prices API")), of_azure),
        )
        if regions
    ]
    if not asked:
        raise InputError("no cloud asked for; name regions, for example --aws us-east-1 --azure eastus")
    ordered: list[tuple[PriceList, list[str]]] = list(asked)
    with progress("asking for list prices"):
        done = update(into, ordered, default_catalogue(), time.time())
    for one in done:
        _tell(one)
    failed = [one.cloud for one in done if one.problem]
    if failed:
        raise CloudError(f"no list prices of {', '.join(failed)}; what {into} had of them is as it was")
    is_changed = any(one.changed or one.types for one in done)
    typer.echo(f"wrote {into}" if is_changed else "nothing has changed")


@catalogue_app.command("import")
def import_command(
    table: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="A table of machines and prices of one cloud.")
    ],
    cloud: Annotated[str, typer.Option("--cloud", metavar="NAME", help="Name of its cloud, such as lambda.")],
    into: Annotated[Path, typer.Option("--into", "-o", metavar="FOLDER", help="The catalogue to add to.")],
    format_: Annotated[TableFormat, typer.Option("--from", help="Whose format it has.")] = TableFormat.SKYPILOT,
    regions: Annotated[
        _Regions, typer.Option("--region", metavar="REGION", help="By default all; may be given again.")
    ] = None,
    spot: Annotated[
        Path | None,
        typer.Option("--spot", metavar="STORE.db", help="A price store to add its spot prices to, as of now."),
    ] = None,
) -> None:
    """Add the machines and list prices of a downloaded table to a catalogue, under today's date.

    Every command that has --instance-types takes the folder. Tables of SkyPilot: catalogs/v8/CLOUD/vms.csv of
    github.com/skypilot-org/skypilot-catalog.

        ebbtide catalogue import vms.csv --cloud nebius --into my-catalogue
    """
    assert format_ is TableFormat.SKYPILOT
    found = SkypilotTable.read(table, cloud)
    unknown = sorted(set(regions or ()) - {row.region for row in found.rows})
    if unknown:
        raise unknown_name("region", unknown[0], {row.region for row in found.rows})
    now_s = time.time()
    for one in update(into, [(found, regions or [])], default_catalogue(), now_s):
        _tell(one)
        typer.echo(f"wrote {into}" if one.changed or one.types else "nothing has changed")
    if spot is not None:
        frame = found.spot_prices(default_catalogue(), now_s)
        frame = frame[frame["region"].isin(regions)] if regions else frame
        added = PriceStore(spot).add(frame, looked_at=now_s)
        typer.echo(f"{cloud}: {added} spot prices new or changed; wrote {spot}")


def _web(base: str, name: str, headers: Callable[[], Mapping[str, str]] | None = None) -> Web:
    return Web(base, name, headers)


def _google() -> Mapping[str, str]:
    key = os.environ.get(_GOOGLE_KEY)
    return {"X-Goog-Api-Key": key} if key else google_headers()()


def _tell(done: Updated) -> None:
    if done.problem:
        typer.echo(f"{done.cloud}: {done.problem}", err=True)
        return
    typer.echo(
        f"{done.cloud}: {done.prices} list prices, {len(done.changed)} new or changed; {len(done.types)} new types"
    )
    changed = [(key, pair) for key, pair in sorted(done.changed.items()) if pair[0] is not None]
    if changed:
        table = Table(title=f"{done.cloud}: changed list prices", box=SIMPLE_HEAD)
        for heading in ("region", "instance type", "product", "before", "now"):
            table.add_column(heading, justify="right" if heading in ("before", "now") else "left", no_wrap=True)
        for (_, region, name, product), (before, now) in changed[:_SHOWN]:
            table.add_row(region, name, product, f"{before:.6g}", f"{now:.6g}")
        terminal().print(table)
        if len(changed) > _SHOWN:
            typer.echo(f"and {len(changed) - _SHOWN} more")
    for reason in sorted(set(done.left_out.values())):
        names = [name for name, why in done.left_out.items() if why == reason]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        typer.echo(f"{done.cloud}: without machine data: {', '.join(names[:_SHOWN])}{more} ({reason})")
