"""Make the live sources of `ebbtide watch` from its options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from ebbtide.errors import InputError, unknown_name
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.signals import LiveSource

_MITHRIL_KEY = "MITHRIL_API_KEY"

Names = list[str] | None


@dataclass(frozen=True)
class LiveSources:
    """Options for the live sources to ask, and what to ask for."""

    ec2: Annotated[Names, typer.Option("--ec2", metavar="REGION", help="EC2 region; may be given again.")] = None
    gcp: Annotated[Names, typer.Option("--gcp", metavar="ZONE", help="Zone of Google Cloud.")] = None
    azure: Annotated[Names, typer.Option("--azure", metavar="REGION", help="Azure region.")] = None
    source: Annotated[
        Names,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Source to ask; may be given again: ec2-prices, ec2-scores, ec2-bands, spotlake (--ec2), "
            "gcp-capacity (--gcp), azure-spot (--azure), mithril, vast. By default ec2-prices, gcp-capacity and "
            "azure-spot, of the clouds that are named.",
        ),
    ] = None
    instance_type: Annotated[
        Names,
        typer.Option("--instance-type", metavar="TYPE", help="Only this instance type; may be given again."),
    ] = None
    gcp_project: Annotated[
        str | None, typer.Option("--gcp-project", metavar="ID", help="Project that asks Google Cloud.")
    ] = None
    endpoint_url: Annotated[str | None, typer.Option(help="Another address of every API, for tests.")] = None

    def chosen(self) -> list[LiveSource]:
        """Make the sources that the options name.

        Raises:
            InputError: A name is unknown, no source is given, or a source lacks an option that it needs.
        """
        usual = {"ec2-prices": self.ec2, "gcp-capacity": self.gcp, "azure-spot": self.azure}
        names = self.source or [name for name, places in usual.items() if places]
        if not names:
            raise InputError("no source asked for; write for example --ec2 us-east-1, or --source vast")
        unknown = next((name for name in names if name not in _MAKERS), None)
        if unknown is not None:
            raise unknown_name("source", unknown, _MAKERS)
        if self.endpoint_url is not None:
            from ebbtide.market.sources.web import check_address

            check_address(self.endpoint_url)
        return [_MAKERS[name](self) for name in dict.fromkeys(names)]

    def _needs(self, name: str, **options: object) -> None:
        missing = next((option for option, value in options.items() if not value), None)
        if missing is not None:
            raise InputError(f"source {name} needs --{missing.replace('_', '-')}")

    def _ec2_prices(self) -> LiveSource:
        from ebbtide.market.sources.ec2_api import Ec2Prices

        self._needs("ec2-prices", ec2=self.ec2)
        return Ec2Prices(self.ec2 or (), self.instance_type or (), self.endpoint_url)

    def _ec2_scores(self) -> LiveSource:
        from ebbtide.market.sources.ec2_scores import Ec2Scores

        self._needs("ec2-scores", ec2=self.ec2, instance_type=self.instance_type)
        return Ec2Scores(self.ec2 or (), self.instance_type or (), self.endpoint_url)

    def _ec2_bands(self) -> LiveSource:
        from ebbtide.market.sources import ec2_bands
        from ebbtide.market.sources.web import Web

        web = Web(self.endpoint_url or ec2_bands.ADDRESS, "the Spot Instance Advisor")
        return ec2_bands.Ec2Bands(self.ec2 or (), self.instance_type or (), web)

    def _spotlake(self) -> LiveSource:
        from ebbtide.market.sources import spotlake
        from ebbtide.market.sources.web import Web

        web = Web(self.endpoint_url or spotlake.ADDRESS, "SpotLake")
        return spotlake.SpotLake(self.ec2 or (), self.instance_type or (), web)

    def _gcp_capacity(self) -> LiveSource:
        from ebbtide.market.sources import gcp_capacity
        from ebbtide.market.sources.web import Web

        self._needs("gcp-capacity", gcp=self.gcp, gcp_project=self.gcp_project, instance_type=self.instance_type)
        web = Web(self.endpoint_url or gcp_capacity.ADDRESS, "Compute Engine", google_headers())
        return gcp_capacity.GcpCapacity(self.gcp_project or "", self.gcp or (), self.instance_type or (), web)

    def _azure_spot(self) -> LiveSource:
        from ebbtide.market.sources import azure_spot
        from ebbtide.market.sources.web import Web

        self._needs("azure-spot", azure=self.azure)
        web = Web(self.endpoint_url or azure_spot.ADDRESS, "Azure Resource Graph", _azure_headers)
        return azure_spot.AzureSpot(self.azure or (), web, default_catalogue(), self.instance_type or ())

    def _mithril(self) -> LiveSource:
        from ebbtide.market.sources import mithril
        from ebbtide.market.sources.web import Web

        web = Web(self.endpoint_url or mithril.ADDRESS, "Mithril", _mithril_headers)
        return mithril.Mithril(web, self.instance_type or ())

    def _vast(self) -> LiveSource:
        from ebbtide.market.sources import vast
        from ebbtide.market.sources.web import Web

        return vast.Vast(self.instance_type or (), Web(self.endpoint_url or vast.ADDRESS, "Vast"))


_MAKERS: dict[str, Callable[[LiveSources], LiveSource]] = {
    "ec2-prices": LiveSources._ec2_prices,
    "ec2-scores": LiveSources._ec2_scores,
    "ec2-bands": LiveSources._ec2_bands,
    "spotlake": LiveSources._spotlake,
    "gcp-capacity": LiveSources._gcp_capacity,
    "azure-spot": LiveSources._azure_spot,
    "mithril": LiveSources._mithril,
    "vast": LiveSources._vast,
}


def google_headers() -> Callable[[], Mapping[str, str]]:
    """Make a function that returns headers with a token of Google's standard chain, cached until it expires."""
    from ebbtide.storage.google_tokens import GoogleTokens

    tokens = GoogleTokens()
    return lambda: {"Authorization": f"Bearer {tokens.token()}"}


def _azure_headers() -> Mapping[str, str]:
    from ebbtide.market.sources.azure_spot import azure_token

    return {"Authorization": f"Bearer {azure_token()}"}


def _mithril_headers() -> Mapping[str, str]:
    key = os.environ.get(_MITHRIL_KEY)
    if not key:
        raise InputError(f"Mithril needs an API key in the environment variable {_MITHRIL_KEY}")
    return {"Authorization": f"Bearer {key}"}
