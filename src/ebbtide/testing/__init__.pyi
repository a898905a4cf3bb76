from .contracts.clouds import CloudContract as CloudContract
from .contracts.policies import PolicyContract as PolicyContract
from .contracts.price_sources import PriceRecord as PriceRecord
from .contracts.price_sources import PriceSourceContract as PriceSourceContract
from .contracts.stores import ObjectStoreContract as ObjectStoreContract
from .metadata_server import MetadataServer as MetadataServer
from .scripted import Scripted as Scripted
from .scripted import replay as replay
